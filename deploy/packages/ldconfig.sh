#!/bin/sh
# The linker's cache learns of a library that came or went.
set -e
ldconfig
