"""Many pictures: folders, patterns and videos, looked at in batches and written as they come."""
