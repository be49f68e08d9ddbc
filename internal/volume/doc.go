// Package volume keeps the data that users write.
package volume
