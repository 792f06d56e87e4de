"""The page's colours and fonts for Gradio's widgets; ``canvas.css`` has the same for ours."""

from __future__ import annotations

import gradio as gr

_LIGHT = {
    "body_background_fill": "#fbfbfa",
    "body_text_color": "#15181c",
    "body_text_color_subdued": "#565e67",
    "background_fill_primary": "#ffffff",
    "background_fill_secondary": "#f0f1f2",
    "border_color_primary": "#878f98",
    "block_background_fill": "#ffffff",
    "block_label_text_color": "#565e67",
    "block_title_text_color": "#565e67",
    "input_background_fill": "#ffffff",
    "input_border_color": "#878f98",
    "input_border_color_focus": "#1b57cf",
    "button_primary_background_fill": "#1b57cf",
    "button_primary_background_fill_hover": "#164bb4",
    "button_primary_text_color": "#ffffff",
    "color_accent": "#1b57cf",
    "color_accent_soft": "#e8effd",
}
_DARK = {
    "body_background_fill": "#101214",
    "body_text_color": "#eceef0",
    "body_text_color_subdued": "#a3abb4",
    "background_fill_primary": "#16191c",
    "background_fill_secondary": "#1f2327",
    "border_color_primary": "#6f7882",
    "block_background_fill": "#16191c",
    "block_label_text_color": "#a3abb4",
    "block_title_text_color": "#a3abb4",
    "input_background_fill": "#16191c",
    "input_border_color": "#6f7882",
    "input_border_color_focus": "#8ab2ff",
    "button_primary_background_fill": "#8ab2ff",
    "button_primary_background_fill_hover": "#a5c4ff",
    "button_primary_text_color": "#0b1524",
    "color_accent_soft": "#1b2a45",
}
_COLOURS = _LIGHT | {f"{name}_dark": colour for name, colour in _DARK.items()}


def theme() -> gr.themes.Base:
    """Gradio's widgets in the viewer's colours, with the system's fonts, Hangul included."""
    fonts = ("Segoe UI", "Roboto", "Helvetica Neue", "Helvetica", "Arial", "Noto Sans")
    hangul = ("Apple SD Gothic Neo", "Malgun Gothic", "Noto Sans KR", "Noto Sans CJK KR")
    widgets: gr.themes.Base = gr.themes.Base(
        font=[gr.themes.Font(name) for name in (*fonts, *hangul, "sans-serif")],
        font_mono=[gr.themes.Font("ui-monospace"), gr.themes.Font("monospace")],
        radius_size="md",
        text_size="md",
    )
    return widgets.set(**_COLOURS)
