#!/bin/sh
# Builds librdrand and installs it: both libraries without debugging symbols, the headers (also
# under the names of the librdrand of 2013), pkg-config files and manual pages.
set -eu

usage() {
    echo "usage: install.sh [--prefix=DIR] [--libdir=DIR] [--destdir=DIR]"
    echo "  --prefix   where it will be used, /usr/local by default"
    echo "  --libdir   where the libraries will be, PREFIX/lib by default"
    echo "  --destdir  a tree that everything is put into, for packaging"
}

prefix=/usr/local libdir='' destdir=''
for argument; do
    case $argument in
    --prefix=*) prefix=${argument#*=} ;;
    --libdir=*) libdir=${argument#*=} ;;
    --destdir=*) destdir=${argument#*=} ;;
    --help) usage && exit 0 ;;
    *) echo "install.sh: found \"$argument\"" >&2 && usage >&2 && exit 2 ;;
    esac
done
libdir=${libdir:-$prefix/lib}
version=2.0.0
soname=librdrand.so.${version%%.*}

here=$(cd "$(dirname "$0")" && pwd)
# A target directory of its own: a librdrand.so with a SONAME is found under that name only.
target=${CARGO_TARGET_DIR:-$here/../../../target}/librdrand
"${CARGO:-cargo}" rustc --release --lib --manifest-path "$here/Cargo.toml" --target-dir "$target" \
    -- -C strip=symbols -C "link-arg=-Wl,-soname,$soname"

to=$destdir$libdir
install -d "$to/pkgconfig" "$destdir$prefix/include" "$destdir$prefix/share/man/man3"
install -m 755 "$target/release/librdrand.so" "$to/librdrand.so.$version"
ln -sf "librdrand.so.$version" "$to/$soname"
ln -sf "$soname" "$to/librdrand.so"
install -m 644 "$target/release/librdrand.a" "$to/librdrand.a"
strip --strip-debug "$to/librdrand.a"
install -m 644 "$here"/include/*.h "$destdir$prefix/include"
install -m 644 "$here"/man/man3/*.3 "$destdir$prefix/share/man/man3"
for name in rdrand librdrand; do
    cat >"$to/pkgconfig/$name.pc" <<END
prefix=$prefix
libdir=$libdir
includedir=\${prefix}/include

Name: $name
Description: Random numbers from RDRAND and RDSEED that fail loudly
Version: $version
Libs: -L\${libdir} -lrdrand
Libs.private: -lpthread -ldl -lm
Cflags: -I\${includedir}
END
done
