#!/bin/sh
# Builds libtare_farmem and installs it: both libraries without debugging symbols, the header, a
# pkg-config file and manual pages.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
library=tare_farmem packages=tare_farmem description="The client of Tare's remote memory"
version=$(sed -n 's/^#define TFM_VERSION "\(.*\)"$/\1/p' "$here/include/tare_farmem.h")
# Until version 1 each minor version may change the interface.
case $version in
0.*) soname=0.$(echo "$version" | cut -d . -f 2) ;;
*) soname=${version%%.*} ;;
esac
. "$here/../../../contrib/c-library/install.sh"
