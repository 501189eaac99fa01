"""What the parties of a run say to each other: handlers of messages, independent of the transport."""
