"""Waits and checks that a program calls itself: barrier, assert_same, only_on."""
