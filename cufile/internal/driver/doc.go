// Package driver binds NVIDIA's libraries: libcuda, libcufile and NVML, loaded at run time, and hbmfs's own kernels.
//
// [LoadCUDA] and [LoadCuFile] load a library and look up its functions. Calls fail with [CUDAError] or [CuFileError], which
// name a remedy. [Describe] says which GPU an index is.
//
// Pitfalls. Most calls need a thread with a current CUDA context, which must stay locked. No library is ever unloaded:
// libcufile's exit handlers stay behind. A build with the tag nogpu loads nothing, and each load says so.
package driver
