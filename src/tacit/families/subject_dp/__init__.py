"""Subject-level methods of [SubjectDP-1] and [SubjectDP-2]: gradients of records, bounded for a subject or a silo."""
