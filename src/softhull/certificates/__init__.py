"""What a proof is: certificates that the checker can replay, written for certified instances."""
