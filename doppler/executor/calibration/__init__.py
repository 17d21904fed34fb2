"""What ops, dispatch and copies cost: measured, kept in profiles, estimated, predicted."""
