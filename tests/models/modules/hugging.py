"""Models of Hugging Face of "the user's own", from a configuration: nothing is downloaded."""

from torch import nn
from transformers import BertConfig, BertForSequenceClassification, ViTConfig, ViTForImageClassification


class Text(nn.Module):
    """Token codes come as numbers of a table."""

    def __init__(self, outputs, units, layers, vocabulary, tokens):
        super().__init__()
        config = BertConfig(
            vocab_size=vocabulary,
            hidden_size=units,
            num_hidden_layers=layers,
            num_attention_heads=2,
            intermediate_size=4 * units,
            max_position_embeddings=tokens,
            num_labels=outputs,
        )
        self.bert = BertForSequenceClassification(config)

    def forward(self, x):
        return self.bert(input_ids=x.long()).logits


class Image(nn.Module):
    """An image comes as one row of a table, or as it is."""

    def __init__(self, outputs, units, side):
        super().__init__()
        self.side = side
        config = ViTConfig(
            image_size=side,
            patch_size=2,
            num_channels=1,
            hidden_size=units,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=2 * units,
            num_labels=outputs,
        )
        self.vit = ViTForImageClassification(config)

    def forward(self, x):
        return self.vit(pixel_values=x.reshape(-1, 1, self.side, self.side)).logits


def text(input_shape, outputs, *, units=16, layers=2, vocabulary=30):
    return Text(outputs, units, layers, vocabulary, *input_shape)


def image(input_shape, outputs, *, units=16, side=8):
    return Image(outputs, units, side)
