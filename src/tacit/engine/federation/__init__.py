"""A federation of organisations: kits, processes, the silos' own data and policies, and what carries messages."""
