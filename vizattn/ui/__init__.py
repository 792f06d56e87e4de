"""The page in the browser. Only this room knows Gradio."""

import os

# Gradio decides this when it is imported: a page on one's own machine calls nobody.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
