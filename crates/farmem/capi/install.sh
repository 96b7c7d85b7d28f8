#!/bin/sh
# Builds libtare_farmem and installs it: both libraries without debugging symbols, the header, a
# pkg-config file and manual pages.
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

here=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's/^#define TFM_VERSION "\(.*\)"$/\1/p' "$here/include/tare_farmem.h")
name=libtare_farmem
# Until version 1 each minor version may change the interface.
case $version in
0.*) soname=$name.so.0.$(echo "$version" | cut -d . -f 2) ;;
*) soname=$name.so.${version%%.*} ;;
esac

# A target directory of its own: a library with a SONAME is found under that name only.
target=${CARGO_TARGET_DIR:-$here/../../../target}/libtare_farmem
"${CARGO:-cargo}" rustc --release --lib --manifest-path "$here/Cargo.toml" --target-dir "$target" \
    -- -C strip=symbols -C "link-arg=-Wl,-soname,$soname"

to=$destdir$libdir
install -d "$to/pkgconfig" "$destdir$prefix/include" "$destdir$prefix/share/man/man3"
install -m 755 "$target/release/$name.so" "$to/$name.so.$version"
ln -sf "$name.so.$version" "$to/$soname"
ln -sf "$soname" "$to/$name.so"
install -m 644 "$target/release/$name.a" "$to/$name.a"
strip --strip-debug "$to/$name.a"
install -m 644 "$here/include/tare_farmem.h" "$destdir$prefix/include"
install -m 644 "$here"/man/man3/*.3 "$destdir$prefix/share/man/man3"
cat >"$to/pkgconfig/tare_farmem.pc" <<END
prefix=$prefix
libdir=$libdir
includedir=\${prefix}/include

Name: tare_farmem
Description: The client of Tare's remote memory
Version: $version
Libs: -L\${libdir} -ltare_farmem
Libs.private: -lpthread -ldl -lm
Cflags: -I\${includedir}
END
