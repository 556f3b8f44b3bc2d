#!/usr/bin/env python3
"""Prints unicode_classes.inc for the build: which code points are letters and which are numbers, by Python's table of
Unicode."""
import sys
import textwrap
import unicodedata


def ranges(category):
    """[(first, last)] of the code points whose general category begins with that letter."""
    found = []
    for code in range(sys.maxunicode + 1):
        if not unicodedata.category(chr(code)).startswith(category):
            continue
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


print(f"// Made by make_unicode_classes.py from Unicode {unicodedata.unidata_version}. First and last code point of each range.")
print("// clang-format off")
for name, category in (("kLetters", "L"), ("kNumbers", "N")):
    pairs = ", ".join(f"{{0x{first:X},0x{last:X}}}" for first, last in ranges(category))
    print(f"constexpr CodeRange {name}[] = {{")
    print(textwrap.fill(pairs, width=118, initial_indent="  ", subsequent_indent="  ") + "};")
print("// clang-format on")
