"""The five collectives on this machine, one implementation beside another."""
