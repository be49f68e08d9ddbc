// Package mounts knows which mounts exist, and who serves and holds them.
package mounts
