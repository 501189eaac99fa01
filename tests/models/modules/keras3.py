"""Models of Keras of "the user's own"."""

import keras
from keras import layers


def images(input_shape, outputs):
    return keras.Sequential(
        [
            layers.Conv2D(4, 3, strides=2, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(outputs),
        ]
    )


def table(input_shape, outputs):
    return keras.Sequential([layers.Dense(8, activation="tanh"), layers.Dense(outputs)])


def batch_norm(input_shape, outputs):
    return keras.Sequential([layers.Dense(8), layers.BatchNormalization(), layers.Dense(outputs)])
