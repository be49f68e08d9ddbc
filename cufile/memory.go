package cufile

import (
	"errors"
	"unsafe"
)

// landing is where a request's bytes go in memory of the caller, and what comes before.
type landing struct {
	at    uintptr // of the request's first byte, on the Reader's device
	n     int64
	after handle // an event that the streams wait for before they write; 0 for none
}

// errArena says that a path cannot write to the caller's memory: cuFile wants memory that it was shown before.
var errArena = errors.New("cufile: internal error: this path moves by way of the arena")

// base is where the view's bytes go in HBM.
func (v *View) base() devicePointer {
	if v.caller != nil {
		return devicePointer(v.caller.at)
	}
	return v.r.hbm + devicePointer(v.at+v.skew)
}

// memory is where they go on the host.
func (v *View) memory() []byte {
	if v.caller != nil {
		return v.caller.bytes()
	}
	return v.r.host[v.at:]
}

// bytes is memory that Go does not know, and which the caller keeps until the request has ended.
func (l *landing) bytes() []byte {
	at := l.at
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), l.n)
}

// follow lets what a worker starts from here on wait for what the caller wants done before.
func (v *View) follow(w *worker) error {
	if v.caller == nil || v.caller.after == 0 {
		return nil
	}
	return w.cu.streamWait(w.stream, v.caller.after)
}

func (c *cuda) streamWait(stream, event handle) error {
	return c.call(cuStreamWaitEvent, "cuStreamWaitEvent", uintptr(stream), uintptr(event), 0)
}
