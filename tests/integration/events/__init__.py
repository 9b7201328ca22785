"""The 25 checks of user events, black box: a gateway process between real loopback peers."""
