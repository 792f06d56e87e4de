"""Write the sheet of handwritten digits that scenes are made from; needs scikit-learn.

The 1,797 scans are those of the UCI data set "Optical Recognition of Handwritten Digits" that
scikit-learn ships, in its order, which keeps writers together.
"""

from pathlib import Path

import numpy as np
from PIL import Image, PngImagePlugin
from sklearn.datasets import load_digits

SHEET = Path(__file__).parent.parent / "assets" / "models" / "digits" / "scans.png"
COLUMNS = 48

scans = load_digits()
ink = np.round(scans.images * (255 / 16)).astype(np.uint8)
rows = -(-len(ink) // COLUMNS)
sheet = np.zeros((rows * COLUMNS, 8, 8), np.uint8)
sheet[: len(ink)] = ink
sheet = sheet.reshape(rows, COLUMNS, 8, 8).swapaxes(1, 2).reshape(rows * 8, COLUMNS * 8)
text = PngImagePlugin.PngInfo()
text.add_text("digits", "".join(map(str, scans.target)))
Image.fromarray(sheet).save(SHEET, optimize=True, pnginfo=text)
print(f"wrote {SHEET.name}: {len(ink)} scans, {SHEET.stat().st_size:,} bytes")
