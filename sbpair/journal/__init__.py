"""Where active/active keeps its journal: `open_journal` picks by address; `sqlite` and `cosmos` implement the port."""
