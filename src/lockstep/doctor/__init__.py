"""What is installed here, what would go wrong, and how to fix it."""
