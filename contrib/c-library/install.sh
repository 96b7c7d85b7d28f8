# The installer of the C libraries: both libraries without debugging symbols, the headers, manual
# pages and pkg-config files. The `install.sh` of each library sets these and then runs this:
#
#   here         the folder of the library's package
#   library      its name, without `lib`
#   version      its version
#   soname       the version in its SONAME
#   packages     the names of its pkg-config files
#   description  the line in them

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
name=lib$library

# A target directory of its own: a library with a SONAME is found under that name only.
target=${CARGO_TARGET_DIR:-$here/../../../target}/$name
"${CARGO:-cargo}" rustc --release --lib --manifest-path "$here/Cargo.toml" --target-dir "$target" \
    -- -C strip=symbols -C "link-arg=-Wl,-soname,$name.so.$soname"

to=$destdir$libdir
install -d "$to/pkgconfig" "$destdir$prefix/include" "$destdir$prefix/share/man/man3"
install -m 755 "$target/release/$name.so" "$to/$name.so.$version"
ln -sf "$name.so.$version" "$to/$name.so.$soname"
ln -sf "$name.so.$soname" "$to/$name.so"
install -m 644 "$target/release/$name.a" "$to/$name.a"
strip --strip-debug "$to/$name.a"
install -m 644 "$here"/include/*.h "$destdir$prefix/include"
install -m 644 "$here"/man/man3/*.3 "$destdir$prefix/share/man/man3"
for package in $packages; do
    cat >"$to/pkgconfig/$package.pc" <<END
prefix=$prefix
libdir=$libdir
includedir=\${prefix}/include

Name: $package
Description: $description
Version: $version
Libs: -L\${libdir} -l$library
Libs.private: -lpthread -ldl -lm
Cflags: -I\${includedir}
END
done
