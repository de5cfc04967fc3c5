"""The binding to the native engine, liblockstep."""
