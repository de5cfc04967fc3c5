"""Whether arrays that are replicated are the same on all devices that hold them."""
