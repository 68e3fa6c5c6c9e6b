"""What people read: pure functions from the JSON of the API to text and HTML."""
