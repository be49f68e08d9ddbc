package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/cufile/writer"
)

// code is an hbmfs_code. A test compares the numbers with libhbmfs.h.
type code int32

const (
	codeOK          code = 0
	codeTimeout     code = 1
	codeInvalid     code = 10
	codeClosed      code = 11
	codeNotFound    code = 12
	codePermission  code = 13
	codeStale       code = 14
	codeUnavailable code = 15
	codeNoDevice    code = 16
	codeOutOfMemory code = 17
	codeOutOfRange  code = 18
	codeTooLarge    code = 19
	codeCancelled   code = 20
	codeIO          code = 21
	codeForked      code = 22
	codeInternal    code = 23
	codeExists      code = 24
	codeBusy        code = 25
	codeWrite       code = 26
	codeFormat      code = 27
)

// failure is an error that has its code.
type failure struct {
	code code
	text string
}

func (f *failure) Error() string { return f.text }

// otherwise gives err a code that it has unless codeOf knows a better one.
type otherwise struct {
	code code
	err  error
}

func (o *otherwise) Error() string { return o.err.Error() }
func (o *otherwise) Unwrap() error { return o.err }

// internally makes an error without a code one of hbmfs's own.
func internally(err error) error {
	if err == nil {
		return nil
	}
	return &otherwise{codeInternal, err}
}

// CUDA results (cuda.h).
const (
	cudaOutOfMemory   = 2
	cudaNoDevice      = 100
	cudaInvalidDevice = 101
)

// codeOf gives an error's code, and the errno of the system call where one failed.
func codeOf(err error) (code, syscall.Errno) {
	if err == nil {
		return codeOK, 0
	} else if known, ok := errors.AsType[*failure](err); ok {
		return known.code, 0
	}
	for _, c := range []struct {
		is   error
		code code
	}{
		{cufile.ErrUnderWay, codeTimeout}, {context.Canceled, codeCancelled}, {context.DeadlineExceeded, codeCancelled},
		{cufile.ErrClosed, codeClosed}, {os.ErrClosed, codeClosed}, {cufile.ErrMemory, codeInvalid}, {cufile.ErrOutOfRange, codeOutOfRange},
		{cufile.ErrShort, codeStale}, {control.ErrStale, codeStale}, {cufile.ErrTooLarge, codeTooLarge},
		{cufile.ErrNoDevice, codeNoDevice}, {writer.ErrClosed, codeClosed}, {writer.ErrPlan, codeInvalid}, {writer.ErrMemory, codeInvalid},
		{writer.ErrNoMemory, codeOutOfMemory},
	} {
		if errors.Is(err, c.is) {
			return c.code, 0
		}
	}
	if _, ok := errors.AsType[*writer.Error](err); ok {
		var errno syscall.Errno
		errors.As(err, &errno)
		return codeWrite, errno
	}
	var cuda *cufile.CUDAError
	isCUDA := errors.As(err, &cuda)
	switch {
	case isCUDA && cuda.Code == cudaOutOfMemory:
		return codeOutOfMemory, 0
	case errors.Is(err, cufile.ErrUnavailable):
		return codeUnavailable, 0
	case errors.Is(err, cufile.ErrNoLibrary), isCUDA && (cuda.Code == cudaNoDevice || cuda.Code == cudaInvalidDevice):
		return codeNoDevice, 0
	case isCUDA:
		return codeInternal, 0
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return codeOfErrno(errno), errno
	}
	if fallback, ok := errors.AsType[*otherwise](err); ok {
		return fallback.code, 0
	}
	return codeIO, 0
}

func codeOfErrno(errno syscall.Errno) code {
	switch errno {
	case syscall.ENOENT, syscall.ENOTDIR:
		return codeNotFound
	case syscall.EACCES, syscall.EPERM, syscall.EROFS:
		return codePermission
	case syscall.ESTALE, syscall.ENOTCONN, syscall.ECONNABORTED:
		return codeStale
	case syscall.ENOMEM:
		return codeOutOfMemory
	case syscall.EFAULT:
		return codeInvalid
	}
	return codeIO
}

// clip makes text fit into a C array of size bytes, with the zero behind it, without cutting a character.
func clip(text string, size int) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "?")
	if len(text) < size {
		return text
	}
	text = text[:size-1]
	for len(text) > 0 && !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return text
}
