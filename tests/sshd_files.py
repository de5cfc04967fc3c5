"""What a host starts with, the files of its sshd, and those of the ssh that connects to it."""

from __future__ import annotations

# A home of its own has none of the files that a shell of root reads and ssh would find.
# bash, because as process 1 it also collects the exit of processes whose parent has ended.
# The mounts are the host's own and so end with it. sshd needs its directory in /run, and an
# account without "!" in the place of the password, which would mean: locked.
INIT = """
set -e
mount -t proc proc /proc
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir /run/sshd
cd "$2/$1"
printf "root:*:20000:0:99999:7:::\\nsshd:*:20000:0:99999:7:::\\n" > shadow
echo "root:x:0:0:root:$PWD/home:/bin/bash" > passwd
echo "sshd:x:102:65534::/run/sshd:/usr/sbin/nologin" >> passwd
for name in shadow passwd hosts; do
    mount --bind $name /etc/$name
done
hostname "$1"
echo up
while read -r _; do :; done
"""
SSHD_CONFIG = """\
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {keys}
PidFile none
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AllowTcpForwarding yes
Subsystem sftp internal-sftp
MaxStartups 100
LogLevel VERBOSE
SetEnv {environ}
"""
FOR_ALL_HOSTS = """\
Host *
  User root
  IdentityFile {key}
  IdentitiesOnly yes
  UserKnownHostsFile {known}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  # The default costs half a second of a processor for each connection.
  KexAlgorithms curve25519-sha256
"""


def host_entry(name: str, address: str, port: int, jump: str | None) -> str:
    """A host in ssh's configuration."""
    lines = [f"HostName {address}", f"HostKeyAlias {name}", f"Port {port}"]
    if jump:
        lines.append(f"ProxyJump {jump}")
    return f"Host {name}\n" + "".join(f"  {line}\n" for line in lines)
