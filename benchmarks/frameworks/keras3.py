"""Keras 3."""

import keras
from keras import layers


def cnn(input_shape, outputs):
    return keras.Sequential(
        [
            layers.ZeroPadding2D(3),
            layers.Conv2D(16, 8, strides=2),
            layers.MaxPooling2D(2, strides=1),
            layers.ReLU(),
            layers.Conv2D(32, 4, strides=2),
            layers.MaxPooling2D(2, strides=1),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(outputs),
        ]
    )


def mlp(input_shape, outputs):
    return keras.Sequential([layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dense(outputs)])
