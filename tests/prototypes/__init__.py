"""Small awkward families on the real parts. They are here only to attack the seams until the real families come."""
