"""What two services use."""
