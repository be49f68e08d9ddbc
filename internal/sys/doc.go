// Package sys offers services of Linux beyond Go's library.
package sys
