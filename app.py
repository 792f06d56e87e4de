"""The page as a program: ``python app.py``, and the entry of a hosted Space."""

from vizattn.ui.page import launch

if __name__ == "__main__":
    launch()
