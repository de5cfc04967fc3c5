"""The programs that processes run together: what each compiled, and in what two of them differ."""
