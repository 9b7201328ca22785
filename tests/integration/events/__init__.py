"""The 25 checks of user events as black-box tests: a gateway process between real loopback peers."""
