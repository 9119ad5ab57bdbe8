#!/bin/bash
# Assembles a CUDA 12 toolkit for Clang from NVIDIA's wheels: toolkit.sh FOLDER. PyPI has no fatbinary of CUDA 12, so
# that of CUDA 13 (FATBINARY) is called, with images named as it wants them and packed as drivers for CUDA 12 read them.
set -euo pipefail
to=$(realpath -m "$1")
fatbinary=${FATBINARY:-/usr/local/cuda/bin/fatbinary}
mkdir -p "$to/wheels"
${PIP:-pip} download --quiet --no-deps --dest "$to/wheels" \
  nvidia-cuda-nvcc-cu12==12.9.86 nvidia-cuda-runtime-cu12==12.9.79 nvidia-cuda-cccl-cu12==12.9.27
for wheel in "$to"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$to/wheels"; done
for part in nvcc runtime cccl; do cp -r "$to/wheels/nvidia/cuda_$part/." "$to"; done
ln -sfn lib "$to/lib64"
ln -sf libcudart.so.12 "$to/lib/libcudart.so"
# Clang includes it always; nothing here needs cuRAND.
touch "$to/include/curand_mtgp32_kernel.h"
# CMake finds the toolkit, and its version, by this name.
printf '#!/bin/sh\necho "Cuda compilation tools, release 12.9, V12.9.86"\n' >"$to/bin/nvcc"
cat >"$to/bin/fatbinary" <<END
#!/bin/bash
for argument in "\$@"; do
  argument=\${argument/#--image=profile=sm_/--image3=kind=elf,sm=}
  arguments+=("\${argument/#--image=profile=compute_/--image3=kind=ptx,sm=}")
done
exec "$fatbinary" --compress-mode=speed "\${arguments[@]}"
END
chmod +x "$to"/bin/*
