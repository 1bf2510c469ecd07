"""Helpers that several subcommands share."""
