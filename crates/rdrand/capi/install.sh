#!/bin/sh
# Builds librdrand and installs it: both libraries without debugging symbols, the headers (also
# under the names of the librdrand of 2013), pkg-config files and manual pages.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
library=rdrand version=2.0.0 soname=2 packages='rdrand librdrand'
description='Random numbers from RDRAND and RDSEED that fail loudly'
. "$here/../../../contrib/c-library/install.sh"
