"""The processes of the stories."""
