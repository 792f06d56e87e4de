"""Statistics of every head over many pictures, on one machine or on several."""
