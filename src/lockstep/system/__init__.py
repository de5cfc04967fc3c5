"""Linux: files, descriptors, connections and processes."""
