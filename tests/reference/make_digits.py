# SPDX-License-Identifier: Apache-2.0
"""Makes examples/classifier/digits.txt from the copy of the digits that scikit-learn ships.

    python tests/reference/make_digits.py > examples/classifier/digits.txt

The first 1000 images of 8 x 8 pixels, one a line: 64 characters from 0 (white) to g (16, black), then the digit.
"""

from sklearn.datasets import load_digits

SHADES = "0123456789abcdefg"


def main():
    digits = load_digits()
    for image, digit in list(zip(digits.data.astype(int), digits.target))[:1000]:
        print("".join(SHADES[pixel] for pixel in image), digit)


if __name__ == "__main__":
    main()
