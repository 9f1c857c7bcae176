"""Models built from headwise's attention modules, each a whole model in one file."""

from headwise.models.bert import Bert, BertConfig
from headwise.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from headwise.models.image_text import ImageText, ImageTextConfig
from headwise.models.language_model import CausalConfig, CausalLanguageModel, MaskedLanguageModel
from headwise.models.latent_encoder import LatentEncoder, LatentEncoderConfig
from headwise.models.patch_forecaster import CausalPatchForecaster, PatchForecaster, PatchForecasterConfig
from headwise.models.small_encoder import SmallEncoder, SmallEncoderConfig
from headwise.models.span_reader import SpanReader
from headwise.models.text_classifier import TextClassifier

__all__ = [
    "Bert",
    "BertConfig",
    "CausalConfig",
    "CausalLanguageModel",
    "CausalPatchForecaster",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "ImageText",
    "ImageTextConfig",
    "LatentEncoder",
    "LatentEncoderConfig",
    "MaskedLanguageModel",
    "PatchForecaster",
    "PatchForecasterConfig",
    "SmallEncoder",
    "SmallEncoderConfig",
    "SpanReader",
    "TextClassifier",
]
