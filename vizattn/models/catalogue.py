"""The models that the page offers, a handful per use; any other name can be typed in."""

from __future__ import annotations

# Name -> label; the first is the default.
MODELS: dict[str, str] = {
    "vizattn/dinov2-small": "DINOv2 ViT-S/14",
    "vizattn/digits": "Digits ViT-XS/8",
    "timm/vit_small_patch14_reg4_dinov2.lvd142m": "DINOv2 ViT-S/14 with registers",
    "timm/vit_base_patch14_reg4_dinov2.lvd142m": "DINOv2 ViT-B/14 with registers",
    "timm/vit_small_patch16_dinov3.lvd1689m": "DINOv3 ViT-S/16",
    "timm/vit_base_patch16_dinov3.lvd1689m": "DINOv3 ViT-B/16",
    "timm/vit_small_patch16_224.dino": "DINO ViT-S/16",
    "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k": "ViT-B/16, ImageNet",
    "timm/deit_small_patch16_224.fb_in1k": "DeiT-S/16, ImageNet",
    "timm/deit_small_distilled_patch16_224.fb_in1k": "DeiT-S/16 distilled, ImageNet",
    "timm/cait_xxs24_224.fb_dist_in1k": "CaiT-XXS/24, ImageNet",
    "timm/vit_base_patch16_clip_224.openai": "CLIP ViT-B/16",
    "timm/vit_base_patch16_siglip_224.v2_webli": "SigLIP 2 ViT-B/16",
    "timm/swin_tiny_patch4_window7_224.ms_in1k": "Swin-T, ImageNet",
    "timm/maxvit_tiny_tf_224.in1k": "MaxViT-T, ImageNet",
    "timm/samvit_base_patch16.sa1b": "SAM ViT-B/16",
}
