"""What an event costs: events, their privacy losses, accountants, and the noise that a budget needs."""
