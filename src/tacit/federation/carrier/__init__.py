"""NVFlare as the carrier of messages: jobs, envelopes and processes."""
