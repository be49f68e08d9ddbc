package driver

import "fmt"

// AlreadyOpen is the Code of a second open in a process.
const AlreadyOpen = 5026

// cufileBase is where cuFile's own error codes begin (cufile.h, CUFILEOP_BASE_ERR).
const cufileBase = 5000

// CuFileError is a failed call into libcufile.
type CuFileError struct {
	Call string // the function, as cufile.h names it
	Code int    // CUfileOpError, 5001 and up
	CUDA int    // CUresult, 0 where CUDA was not the reason
}

func (e *CuFileError) Error() string {
	name, advice := describeCuFile(e.Code)
	text := fmt.Sprintf("%s: %s (%d)", e.Call, name, e.Code)
	if e.CUDA != 0 {
		text += fmt.Sprintf(", CUDA error %d", e.CUDA)
	}
	if advice != "" {
		text += ": " + advice
	}
	return text
}

// describeCuFile gives the name of an error code (cufile.h 1.15.1; 5021 and 5032 are not used there) without its
// CU_FILE_ prefix, and a remedy, empty where nothing general helps.
func describeCuFile(code int) (name, advice string) {
	const (
		udev   = "libcufile must be able to read the device's udev data: in a container mount /run/udev read-only"
		driver = "load nvidia-fs, or set up PCI P2PDMA"
	)
	known := map[int][2]string{
		5001: {"DRIVER_NOT_INITIALIZED", driver},
		5002: {"DRIVER_INVALID_PROPS", ""},
		5003: {"DRIVER_UNSUPPORTED_LIMIT", ""},
		5004: {"DRIVER_VERSION_MISMATCH", "nvidia-fs and libcufile must be of one release"},
		5005: {"DRIVER_VERSION_READ_ERROR", ""},
		5006: {"DRIVER_CLOSING", ""},
		5007: {"PLATFORM_NOT_SUPPORTED", "cuFile cannot work on this platform; use --path staged or mapped"},
		5008: {"IO_NOT_SUPPORTED", "this file's file system is not one that cuFile serves; ext4 and XFS on NVMe are"},
		5009: {"DEVICE_NOT_SUPPORTED", "this GPU has no GPUDirect Storage"},
		5010: {"NVFS_DRIVER_ERROR", ""},
		5011: {"CUDA_DRIVER_ERROR", ""},
		5012: {"CUDA_POINTER_INVALID", ""},
		5013: {"CUDA_MEMORY_TYPE_INVALID", ""},
		5014: {"CUDA_POINTER_RANGE_ERROR", ""},
		5015: {"CUDA_CONTEXT_MISMATCH", ""},
		5016: {"INVALID_MAPPING_SIZE", "more memory than max_device_pinned_mem_size_kb; raise it in cufile.json or use a smaller arena"},
		5017: {"INVALID_MAPPING_RANGE", ""},
		5018: {"INVALID_FILE_TYPE", "only regular files and block devices work"},
		5019: {"INVALID_FILE_OPEN_FLAG", ""},
		5020: {"DIO_NOT_SET", "the file was opened without O_DIRECT, which this version needs"},
		5022: {"INVALID_VALUE", ""},
		5023: {"MEMORY_ALREADY_REGISTERED", ""},
		5024: {"MEMORY_NOT_REGISTERED", ""},
		5025: {"PERMISSION_DENIED", "this user may not use the driver or the file"},
		5026: {"DRIVER_ALREADY_OPEN", "this process uses cuFile already, by another reader or writer or a library: close that one first, or use --path mapped or staged"},
		5027: {"HANDLE_NOT_REGISTERED", udev},
		5028: {"HANDLE_ALREADY_REGISTERED", ""},
		5029: {"DEVICE_NOT_FOUND", ""},
		5030: {"INTERNAL_ERROR", udev},
		5031: {"GETNEWFD_FAILED", "libcufile could not reopen the file"},
		5033: {"NVFS_SETUP_ERROR", driver},
		5034: {"IO_DISABLED", "the configuration denies this device, mount or file system"},
		5035: {"BATCH_SUBMIT_FAILED", ""},
		5036: {"GPU_MEMORY_PINNING_FAILED", "BAR1 may be too small; use a smaller arena"},
		5037: {"BATCH_FULL", ""},
		5038: {"ASYNC_NOT_SUPPORTED", ""},
		5039: {"INTERNAL_BATCH_SETUP_ERROR", ""},
		5040: {"INTERNAL_BATCH_SUBMIT_ERROR", ""},
		5041: {"INTERNAL_BATCH_GETSTATUS_ERROR", ""},
		5042: {"INTERNAL_BATCH_CANCEL_ERROR", ""},
		5043: {"NOMEM_ERROR", ""},
		5044: {"IO_ERROR", ""},
		5045: {"INTERNAL_BUF_REGISTER_ERROR", ""},
		5046: {"HASH_OPR_ERROR", ""},
		5047: {"INVALID_CONTEXT_ERROR", ""},
		5048: {"NVFS_INTERNAL_DRIVER_ERROR", ""},
		5049: {"BATCH_NOCOMPAT_ERROR", ""},
		5050: {"IO_MAX_ERROR", ""},
	}
	if d, ok := known[code]; ok {
		return d[0], d[1]
	}
	return "unknown error", ""
}
