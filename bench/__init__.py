"""Measure tenure on this machine, beside the bare driver doing the same rows in the same run."""
