"""Small awkward families built from the real parts, to test the interfaces of the parts."""
