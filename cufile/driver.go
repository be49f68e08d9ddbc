package cufile

import "github.com/hbmfs/hbmfs/internal/driver"

// What callers see of the libraries below.
type (
	// Libraries names the shared libraries to load instead of the system's.
	Libraries = driver.Libraries
	// GPU describes one GPU.
	GPU = driver.GPU
	// CUDAError is a failed call into libcuda.
	CUDAError = driver.CUDAError
	// CuFileError is a failed call into libcufile.
	CuFileError = driver.CuFileError
)
